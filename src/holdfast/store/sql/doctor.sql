-- name: doctor_dead_letters
select count(*) from holdfast.dead_letters where resolution is null and tenant_id <> '#dead_letters_open'

-- name: doctor_unknown_effects
select count(*) from holdfast.effects where state = 'outcome_unknown' and tenant_id <> '#effects_unknown'
