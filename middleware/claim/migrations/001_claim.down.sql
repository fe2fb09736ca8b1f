-- Forgets which events were processed: what the broker still redelivers is processed again.
drop table {schema}.processed, {schema}.consumer;
