-- Forgets events that wait for a retry or are dead letters, with their payloads.
drop table {schema}.claim_start, {schema}.claim_run, {schema}.claim_audit, {schema}.claim_key, {schema}.claim_failed, {schema}.claim_failed_count;
drop function {schema}.claim_failed_counted, {schema}.claim_failed_fold, {schema}.claim_failed_alike;
