-- Forgets which events were processed: what the broker still redelivers is processed again. Forgets events that wait for a retry
-- or are dead letters, with their payloads.
drop table {schema}.journal, {schema}.claim_start, {schema}.claim_run, {schema}.claim_audit, {schema}.claim_replay, {schema}.claim_replay_event, {schema}.claim_replay_superseded, {schema}.claim_key,
    {schema}.claim_failed, {schema}.claim_failed_count, {schema}.processed_ahead, {schema}.processed_retention, {schema}.processed, {schema}.consumer;
drop function {schema}.journal_days(int), {schema}.claim_failed_counted, {schema}.claim_failed_fold, {schema}.claim_failed_alike, {schema}.processed_days(int),
    {schema}.processed_settle(uuid, uuid, smallint), {schema}.processed_early(uuid, smallint), {schema}.processed_bound(date),
    {schema}.claim_refused(text, boolean), {schema}.claim_forgotten(smallint, uuid);
