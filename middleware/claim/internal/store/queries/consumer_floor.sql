-- Raises the floor of every consumer that is there. Where none is, one without a name keeps it for the first that comes.
-- Locks the rows; the table was locked before against new ones.
with raised as (
    update {schema}.consumer set floor = $1::timestamptz where floor is null or floor < $1
)
insert into {schema}.consumer (name, floor) select '', $1 where not exists (select from {schema}.consumer)
