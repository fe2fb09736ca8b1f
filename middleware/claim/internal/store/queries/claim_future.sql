-- Whether a time is in the future by the server's clock, which the days are made by.
select $1::timestamptz > now()
