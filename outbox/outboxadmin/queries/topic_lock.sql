-- Lets no other transaction change what is set for topics until this one ends. Locks the table against writers.
lock table {schema}.outbox_topic in share row exclusive mode
