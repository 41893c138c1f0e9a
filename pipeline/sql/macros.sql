-- Macros over a list of logits, l. All work in double precision; entropy and kl are in nats.

create or replace macro log_sum_exp(l) as
    list_max(l)::double + ln(list_sum(list_transform(l, lambda x: exp(x::double - list_max(l)::double))));

-- probabilities, in the order of the labels
create or replace macro softmax(l) as
    list_transform(l, lambda x: exp(x::double - log_sum_exp(l)));

-- number of the largest logit, from 0: comparable with label
create or replace macro argmax(l) as
    list_position(l, list_max(l)) - 1;

-- uncertainty of the distribution: 0 is certain, ln(C) is undecided
create or replace macro entropy(l) as
    log_sum_exp(l) - list_sum(list_transform(softmax(l), lambda p, i: p * l[i]::double));

-- probability of the best class less that of the second
create or replace macro margin(l) as
    exp(list_max(l)::double - log_sum_exp(l)) - exp(list_sort(l)[-2]::double - log_sum_exp(l));

-- KL divergence of the distribution q from the distribution p
create or replace macro kl(p, q) as
    list_sum(list_transform(softmax(p), lambda x, i: x * (p[i]::double - q[i]::double)))
    - log_sum_exp(p) + log_sum_exp(q);

-- the float16 that the bits of an integer stand for: log-probabilities and hidden states are stored so
create or replace macro half(bits) as
    case when (bits & 32768) > 0 then -1 else 1 end
    * case
        when ((bits >> 10) & 31) = 0 then (bits & 1023)::double * pow(2, -24)
        else (1024 + (bits & 1023)::double) * pow(2, ((bits >> 10) & 31)::int - 25)
    end;

-- the score that logits of bins stand for: the bins' values, v, by their probability
create or replace macro expectation(l, v) as
    list_transform([list_max(l)::double], lambda top:
        list_sum(list_transform(l, lambda x, i: exp(x::double - top) * v[i]::double))
        / list_sum(list_transform(l, lambda x: exp(x::double - top))))[1];
