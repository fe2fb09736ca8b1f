-- Drops committed events that were not published yet: drain first.
drop table {schema}.outbox, {schema}.outbox_relay, {schema}.outbox_shard;
drop sequence {schema}.outbox_seq_0, {schema}.outbox_seq_1, {schema}.outbox_seq_2, {schema}.outbox_seq_3,
    {schema}.outbox_seq_4, {schema}.outbox_seq_5, {schema}.outbox_seq_6, {schema}.outbox_seq_7,
    {schema}.outbox_seq_8, {schema}.outbox_seq_9, {schema}.outbox_seq_10, {schema}.outbox_seq_11,
    {schema}.outbox_seq_12, {schema}.outbox_seq_13, {schema}.outbox_seq_14, {schema}.outbox_seq_15;
