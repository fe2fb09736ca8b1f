-- Keeps consumers from registering, without blocking claims. Waits for registrations in progress.
lock table {schema}.consumer in share row exclusive mode
