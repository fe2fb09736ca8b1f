-- How many events failed, by state, of consumer $1 and group $2 where those are given. Reads claim_failed_count, which has about a
-- row for each consumer, state and group.
select n.state, sum(n.events)::int from {schema}.claim_failed_count n
join {schema}.consumer c on c.id = n.consumer
where c.name = coalesce($1::text, c.name) and n.error_group = coalesce($2::text, n.error_group)
group by n.state having sum(n.events) > 0
