-- Updates one effect by its primary key, in the day that the program writes in place of the two bounds. The caller holds its advisory
-- lock. A created_at of another day moves the row there. Finds nothing if the row was moved, or its day dropped, since it was read.
update {schema}.effect set created_at = $2, state = $3, token = $4, calls = $5, first_called_at = $6, called_at = $7,
       until = $8, response = $9, reason = $10, settled_by = $11, settled_at = $12, conflicts = $13
where key = $1 and created_at = $14 and created_at >= '-infinity' and created_at < 'infinity'
