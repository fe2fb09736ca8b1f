-- The next event of each key comes to its turn, under the locks of the keys. By the index on keys.
update {schema}.claim_failed set state = 'retrying', due_at = now()
where state = 'blocked' and id in (
    select distinct on (f.consumer, f.key) f.id
    from unnest($1::smallint[], $2::text[]) u(c, k) join {schema}.claim_failed f on f.consumer = c and f.key = k
    where f.key <> '' and f.state <> 'nacked'
    order by f.consumer, f.key, f.id)
