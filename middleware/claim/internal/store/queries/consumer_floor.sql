-- Raises the floor of every consumer. If there is none, a row without a name keeps the floor for the first consumer. Locks the
-- rows; the table is locked already, so no consumer can register.
with raised as (
    update {schema}.consumer set floor = $1::timestamptz where floor is null or floor < $1
)
insert into {schema}.consumer (name, floor) select '', $1 where not exists (select from {schema}.consumer)
