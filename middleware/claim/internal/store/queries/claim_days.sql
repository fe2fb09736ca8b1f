-- Creates the missing days, up to a week ahead. Its locks block no claim; if it cannot get them soon, it fails.
select {schema}.processed_days(7) is null
