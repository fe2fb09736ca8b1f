-- Makes the days that are missing, up to a week ahead. Takes locks that hold no claim up, or gives up.
select {schema}.processed_days(7) is null
