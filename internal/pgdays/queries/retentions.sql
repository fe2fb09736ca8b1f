-- The rows that count in keep.sql, the longest retention first. Reads the whole table, which has a few rows.
select service, keep, renewed_at from {schema}.{table}_retention
where renewed_at + keep + interval '1 day' > now() order by keep desc, service
