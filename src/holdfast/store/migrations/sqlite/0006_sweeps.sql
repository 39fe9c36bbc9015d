-- PostgreSQL's sweeps are counted by their functions; here a statement says how many rows it changed.
select 1;
