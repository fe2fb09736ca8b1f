-- Creates the missing days, including today. Adds tables to effect and waits for nobody.
select {schema}.effect_days(7)
