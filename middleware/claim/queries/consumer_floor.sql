-- Raises the floor of every consumer that is there. Locks the rows; the table was locked before against new ones.
update {schema}.consumer set floor = $1 where floor is null or floor < $1
