-- Forgets events that wait for a retry or are dead letters, with their payloads.
drop table {schema}.claim_start, {schema}.claim_run, {schema}.claim_audit, {schema}.claim_key, {schema}.claim_failed;
