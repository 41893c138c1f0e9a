-- Macros over a list of logits, l. All work in double precision; entropy and kl are in nats. What a lambda needs of the
-- whole list is computed once, in a list of one, and not for every element. No argument of a macro that others call is
-- within a lambda whose parameters have usual names, because DuckDB would confuse these with the names in the argument.
-- A logit of minus infinity is a probability of 0. Logits with null or NaN have no answer: every macro returns null.

-- whether no logit is null or NaN, which DuckDB takes for larger than infinity
create or replace macro is_known(l) as
    list_max(l) <= 'infinity'::double and list_aggregate(l, 'count') = len(l);

-- null if the logits are no distribution, such as minus infinity for all
create or replace macro log_sum_exp(l) as
    list_transform([list_max(l)::double], lambda top: case when isfinite(top) and is_known(l) then
        top + ln(list_sum(list_transform(l, lambda x: exp(x::double - top)))) end)[1];

-- probabilities, in the order of the labels
create or replace macro softmax(l) as
    list_transform([log_sum_exp(l)], lambda log_z:
        case when log_z is not null then list_transform(l, lambda x: exp(x::double - log_z)) end)[1];

-- number of the largest logit, from 0: comparable with label
create or replace macro argmax(l) as
    case when is_known(l) and list_max(l) > '-infinity'::double then list_position(l, list_max(l)) - 1 end;

-- uncertainty of the distribution: 0 is certain, ln(C) is undecided
create or replace macro entropy(l) as
    log_sum_exp(l) - list_sum(list_transform(list_zip(softmax(l), l),
        lambda row: case when row[1] > 0 then row[1] * row[2]::double else 0 end));

-- probability of the best class less that of the second
create or replace macro margin(l) as
    exp(list_max(l)::double - log_sum_exp(l)) - exp(list_sort(l)[-2]::double - log_sum_exp(l));

-- KL divergence of the distribution q from the distribution p
create or replace macro kl(p, q) as
    case when len(p) <> len(q) then error('kl: one list has ' || len(p) || ' logits, the other ' || len(q)) else
        list_sum(list_transform(list_zip(softmax(p), p, q),
            lambda row: case when row[1] > 0 then row[1] * (row[2]::double - row[3]::double) else 0 end))
        - log_sum_exp(p) + log_sum_exp(q)
    end;

-- of a multi-label task: the probability of each label by itself, in their order
create or replace macro sigmoid(l) as
    list_transform(l, lambda x: 1 / (1 + exp(-nullif(x::double, 'nan'))));

-- the numbers of the labels that are likelier than not, from 0, ascending: comparable with label of a multi-label task
create or replace macro likely_labels(l) as
    case when is_known(l) then
        list_filter(list_transform(l, lambda x, i: case when x > 0 then i - 1 end), lambda k: k is not null)
    end;

-- logarithm of the sigmoid of one logit
create or replace macro log_sigmoid(x) as
    least(x::double, 0) - ln(1 + exp(-abs(x::double)));

-- the logit of a label as two logits of yes and no, of which none is infinity
create or replace macro yes_no(x) as
    case when x > 0 then [0, -x::double] else [x::double, 0] end;

-- KL divergence of q from p, each label by itself: the mean over labels
create or replace macro label_kl(p, q) as
    case when len(p) <> len(q) then error('label_kl: one list has ' || len(p) || ' logits, the other ' || len(q)) else
        case when is_known(p) and is_known(q)
            then list_avg(list_transform(list_zip(sigmoid(p), p, q), lambda row:
                case when row[1] > 0 then row[1] * (log_sigmoid(row[2]) - log_sigmoid(row[3])) else 0 end
                + case when row[1] < 1 then (1 - row[1]) * (log_sigmoid(-row[2]) - log_sigmoid(-row[3])) else 0 end)) end
    end;

-- mix of several teachers of a multi-label task, label by label
create or replace macro mix_labels(teachers, weights) as
    list_transform(teachers[1], lambda _, c: list_transform(
        [mix(list_transform(teachers, lambda l: yes_no(l[c])), weights)], lambda pair: pair[1] - pair[2]
    )[1]);

-- several teachers of a row as one, mix([a.logits, b.logits], [0.7, 0.3]): log of the weighted mean of their probabilities,
-- not of the logits, whose scale differs from teacher to teacher; of single logits, scores, the weighted mean
create or replace macro mix(teachers, weights) as case
    when len(list_filter(teachers, lambda l: isfinite(list_max(l)::double) and is_known(l))) < len(teachers) then null
    when len(weights) <> len(teachers) or list_aggregate(weights, 'count') < len(weights) or list_min(weights) <= 0
        or not isfinite(list_sum(weights)::double) or len(list_distinct(list_transform(teachers, lambda l: len(l)))) <> 1
        then error('mix: give lists of equal length, and a positive number as weight of each')
    when len(teachers[1]) = 1
        then [list_sum(list_transform(teachers, lambda l, k: l[1]::double * weights[k])) / list_sum(weights)::double]
    else list_transform(
        [list_transform(teachers, lambda l, k: list_transform(
            [ln(weights[k]) - log_sum_exp(l)], lambda shift: list_transform(l, lambda x: x::double + shift)
        )[1])],
        lambda terms: list_transform(
            terms[1],
            -- null: minus infinity for every teacher
            lambda _, c: coalesce(log_sum_exp(list_transform(terms, lambda t: t[c])), '-infinity')
                - ln(list_sum(weights)::double)
        )
    )[1]
end;

-- mix of those teachers alone whose class has the most votes, equally; of all such classes if there are several
create or replace macro vote(teachers) as list_transform(
    [list_transform(teachers, lambda l: argmax(l))],
    lambda classes: list_transform(
        [list_transform(classes, lambda c: len(list_filter(classes, lambda other: other = c)))],
        lambda votes: list_transform(
            [list_filter(teachers, lambda l, k: classes[k] is null or votes[k] = list_max(votes))],
            lambda chosen: mix(chosen, list_transform(chosen, lambda l: 1))
        )[1]
    )[1]
)[1];

-- the float16 that the bits of an integer stand for: log-probabilities and hidden states are stored so
create or replace macro half(bits) as
    case when (bits & 32768) > 0 then -1 else 1 end
    * case
        when ((bits >> 10) & 31) = 0 then (bits & 1023)::double * pow(2, -24)
        else (1024 + (bits & 1023)::double) * pow(2, ((bits >> 10) & 31)::int - 25)
    end;

-- the score that logits of bins stand for: the bins' values, v, by their probability
create or replace macro expectation(l, v) as
    list_dot_product(softmax(l), v::double[]);
