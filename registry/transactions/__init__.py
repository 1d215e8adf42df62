"""Transactions: one change, one etcd transaction. Pure.

`changes` says what can be asked, `plan` builds the transaction, `replay` tells whether it was done already.
"""
