"""Makes an adapter servable before it is registered, where that needs arithmetic, and puts it where replicas read it.

Only `arithmetic`, `initial`, `stored` and `convert` need torch and PEFT; nothing imports them before they are needed.
"""
