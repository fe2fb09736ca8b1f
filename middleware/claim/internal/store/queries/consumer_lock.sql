-- Keeps consumers from being registered, and holds up no claim. It waits for those that are being registered.
lock table {schema}.consumer in share row exclusive mode
