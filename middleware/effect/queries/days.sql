-- Makes the days that are missing, today among them. Adds tables to effect, without waiting for anybody.
select {schema}.effect_days(7)
