-- Forgets which effects happened: what the broker still redelivers has its effect again.
drop function {schema}.effect_days(int);
drop table {schema}.effect, {schema}.effect_retention, {schema}.effect_resolution;
