-- Records that failed events failed again, but not those that an operator has discarded meanwhile. Locks their rows.
update {schema}.outbox_failed f
set state = a.state, attempts = a.attempts, reason = a.reason, retry_at = case a.state when 'retrying' then now() + a.retry_ms * interval '1 millisecond' end
from unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::int[]) as a (id, state, attempts, reason, retry_ms)
where f.id = a.id and f.state <> 'discarded'
