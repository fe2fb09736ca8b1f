-- Makes this transaction's commit flush the WAL with everything that was committed before. Without it a transaction that writes nothing
-- flushes nothing.
select pg_logical_emit_message(true, 'millrace', '')
