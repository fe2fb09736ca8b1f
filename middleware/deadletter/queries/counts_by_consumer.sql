-- How many events failed, by consumer and state. Reads claim_failed_count, which has about a row for each consumer, state and group.
select c.name, n.state, sum(n.events)::int from {schema}.claim_failed_count n
join {schema}.consumer c on c.id = n.consumer
group by c.name, n.state having sum(n.events) > 0
