"""One change, one etcd transaction, built from what was asked and what was read. Pure.

`changes` says what can be asked, `plan` builds the transaction, `replay` tells whether it was done already.
"""
