-- SQLite has no roles: whoever can read the file can read all of it. Its PostgreSQL twin puts up the second wall.
select 1;
