-- Questions to the rows of a set, t, or of two sets, a and b: from calibration(mnli). Classes are numbers, from 0.
-- Columns named file_… are those that a manifest keeps. Most sets have none.

-- how often the teacher is right, by tenths of its confidence
create or replace macro calibration(t) as table
    select split, bin / 10 as confidence_from, (bin + 1) / 10 as confidence_to, count(*) as n,
        avg(confidence) as confidence, avg(is_right) as accuracy
    from (
        select split, list_max(softmax(logits)) as confidence, (argmax(logits) = label)::int as is_right,
            least(floor(10 * confidence), 9)::int as bin
        from query_table(t) where label is not null and log_sum_exp(logits) is not null
    )
    group by split, bin order by split, bin;

-- expected calibration error: how far confidence and accuracy lie apart in the mean (Guo et al. 2017, ten bins); Brier score and log loss
create or replace macro calibration_error(t) as table
    with binned as (
        select split, sum(n)::bigint as n, sum(n * accuracy) / sum(n) as accuracy,
            sum(n * confidence) / sum(n) as confidence,
            sum(n * abs(accuracy - confidence)) / sum(n) as calibration_error
        from calibration(t) group by split
    ),
    measured as (
        select split, avg(list_sum(list_transform(p, lambda x: x * x)) - 2 * p[label + 1] + 1) as brier,
            avg(-ln(greatest(p[label + 1], 1e-38))) as log_loss
        from (select split, softmax(logits) as p, label from query_table(t) where label is not null) group by split
    )
    from binned join measured using (split) order by split;

-- the same of a multi-label task, over each label of each row
create or replace macro label_calibration_error(t) as table
    with each as (
        select split, p, is_gold::int as is_gold, least(floor(10 * p), 9)::int as bin
        from (
            select split, unnest(range(len(logits))) as number, unnest(sigmoid(logits)) as p,
                list_contains(label, number) as is_gold
            from query_table(t) where label is not null
        )
    ),
    binned as (select split, bin, count(*) as n, abs(sum(is_gold - p)) as gap from each group by split, bin),
    measured as (
        select split, avg((p - is_gold) ** 2) as brier,
            avg(-ln(greatest(case when is_gold = 1 then p else 1 - p end, 1e-38))) as log_loss
        from each group by split
    ),
    errors as (select split, sum(n)::bigint as n, sum(gap) / sum(n) as calibration_error from binned group by split)
    from errors join measured using (split) order by split;

-- what the teacher takes the rows of each class for
create or replace macro confusion(t) as table
    select split, label, argmax(logits) as teacher, count(*) as n, n / sum(n) over (partition by split, label) as share
    from query_table(t) where label is not null group by split, label, teacher order by all;

-- precision, recall and F1 of each label, of rows with lists of labels that are gold and predicted
create or replace macro label_f1(t) as table
    select split, number as label, sum(gold)::bigint as gold, sum(predicted)::bigint as predicted,
        sum(hit) / nullif(sum(predicted), 0) as precision, sum(hit) / nullif(sum(gold), 0) as recall,
        2 * sum(hit) / sum(gold + predicted) as f1
    from (
        select split, unnest(gold) as number, 1 as gold, 0 as predicted, 0 as hit from query_table(t)
        union all select split, unnest(predicted), 0, 1, 0 from query_table(t)
        union all select split, unnest(list_intersect(gold, predicted)), 0, 0, 1 from query_table(t)
    )
    group by split, number order by split, number;

-- how good the teacher is at each class: how many rows are of it in gold, how many it predicts, and how many are both
create or replace macro class_scores(t) as table
    with answered as (
        select split, [label] as gold, [argmax(logits)] as predicted from query_table(t) where label is not null
    )
    from label_f1(answered);

-- the same of a multi-label task
create or replace macro label_scores(t) as table
    with answered as (
        select split, label as gold, likely_labels(logits) as predicted from query_table(t) where label is not null
    )
    from label_f1(answered);

-- of a multi-label task, which labels the teacher is most certain of against gold, the most certain first: one of the two is wrong
create or replace macro label_doubts(t) as table
    select split, source_row, number as label, is_gold, p, columns('^(sentence[12]|file_.*)$')
    from (
        select split, source_row, unnest(range(len(logits))) as number, unnest(sigmoid(logits)) as p,
            list_contains(label, number) as is_gold, columns('^(sentence[12]|file_.*)$')
        from query_table(t) where label is not null
    )
    where is_gold <> (p > 0.5) order by abs(p - is_gold::int) desc, split, source_row, number;

-- whether two rows have the same text: by the text, or where a set has none by its hash
create or replace macro same_text(x, y) as coalesce(
    x.sentence1 = y.sentence1 and x.sentence2 is not distinct from y.sentence2, x.text_hash = y.text_hash
);

-- how far two teachers agree on the same texts: share of equal answers, mean divergence of b from a (nats)
create or replace macro agreement(a, b) as table
    select split, count(*) as n, avg((argmax(x.logits) = argmax(y.logits))::int) as agreement,
        avg(kl(x.logits, y.logits)) as kl
    from query_table(a) x join query_table(b) y using (split, source_row, variant)
    where same_text(x, y) group by split order by split;

-- the texts on which two teachers differ in their answer, the most different first
create or replace macro disagreement(a, b) as table
    select split, source_row, variant, x.label, argmax(x.logits) as a, argmax(y.logits) as b,
        kl(x.logits, y.logits) as kl, x.sentence1, x.sentence2
    from query_table(a) x join query_table(b) y using (split, source_row, variant)
    where same_text(x, y) and argmax(x.logits) <> argmax(y.logits) order by kl desc, split, source_row, variant;

-- how far a teacher's answers to an augmented row and to its original agree
create or replace macro variant_agreement(t) as table
    select v.origin, count(*) as n, avg((argmax(o.logits) = argmax(v.logits))::int) as agreement,
        avg(kl(o.logits, v.logits)) as kl
    from query_table(t) v join query_table(t) o using (split, source_row)
    where v.variant > 0 and o.variant = 0 group by v.origin order by v.origin;

-- the rows of which the teacher is least sure, the least sure first
create or replace macro hardest(t) as table
    select split, source_row, variant, label, argmax(logits) as teacher, margin(logits) as margin,
        columns('^(sentence[12]|file_.*)$')
    from query_table(t) order by margin, split, source_row, variant;

-- rows where the teacher contradicts gold, first those where it is surest of its own class against that of gold
create or replace macro gold_disagreement(t) as table
    select split, source_row, variant, label, argmax(logits) as teacher, softmax(logits)[label + 1] as p_label,
        list_max(softmax(logits)) as p_teacher, columns('^(sentence[12]|file_.*)$')
    from query_table(t) where label is not null and argmax(logits) <> label
    order by p_teacher - p_label desc, split, source_row, variant;

-- rows with gold whose class is likely wrong, the likeliest first: another class is likelier than it is on average
-- for rows that belong to it (confident learning, Northcutt et al. 2021)
create or replace macro label_errors(t) as table
    with probabilities as (
        select *, softmax(logits) as p from query_table(t) where label is not null
    ), usual as (
        select split, label as class, avg(p[label + 1]) as p_usual from probabilities group by split, label
    ), confident as (
        select split, source_row, variant, any_value(label) as label, arg_max(class, p[class + 1]) as class,
            max(p[class + 1]) as p_class, any_value(p[label + 1]) as p_label,
            any_value(columns('^(sentence[12]|file_.*)$')) as '\0'
        from probabilities join usual using (split) where p[class + 1] >= p_usual group by split, source_row, variant
    )
    select split, source_row, variant, label, class as likely, p_label, p_class, columns('^(sentence[12]|file_.*)$')
    from confident where class <> label order by p_class - p_label desc, split, source_row, variant;

-- a text in NFC and lower case, without invisible marks, with one space between words: two texts are copies if it is equal
create or replace macro plain_text(t) as
    trim(lower(nfc_normalize(regexp_replace(regexp_replace(t, '\p{Cf}', '', 'g'), '[\p{Z}\p{Cc}]+', ' ', 'g'))));

-- dev rows that copy a training row, the first of them beside each, or have its hash in a set without text: scores flatter
-- there; empty texts are no evidence
create or replace macro dev_in_train(t) as table
    with keyed as (
        select *, coalesce(plain_text(sentence1), text_hash::varchar) as first, plain_text(sentence2) as second
        from query_table(t) where variant = 0
    ), learnt as (
        select first, second, min(source_row) as train_row from keyed where split = 'train' group by first, second
    )
    select d.split, d.source_row, train_row, d.label, d.sentence1, d.sentence2
    from keyed d join learnt l on d.first = l.first and d.second is not distinct from l.second
    where d.split <> 'train' and d.first || coalesce(d.second, '') <> ''
    order by d.split, d.source_row;
