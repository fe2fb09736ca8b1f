-- Whether a time is in the future by the server's clock, which also decides which days exist.
select $1::timestamptz > now()
