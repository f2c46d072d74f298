#!/usr/bin/env bash
# Trains fastText and tp on the same rows, one after the other, each for as long by the clock from its start to its
# saved model, and judges both by the same held-out rows: a line each. Debian: apt-get install fasttext
#   examples/peers/fasttext.sh TRAIN TEST SECONDS [OPTIONS OF fasttext ...]
# TRAIN and TEST are files as fastText reads them: __label__a __label__b a text
# TP_OPTIONS are more options of tp train, such as '--epochs 1000' where 20 passes take less time than there is
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 3 ] || { sed -n '2,6s/^# *//p' "$0" >&2; exit 2; }
train=$(realpath "$1") test=$(realpath "$2") seconds=$3
shift 3
[ $# -gt 0 ] || set -- -loss ova -dim 64 -wordNgrams 2 -minn 2 -maxn 5 -lr 0.5
best=100 # classes that are asked for

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TIMEFORMAT='%R %U %S'
threads=$(nproc)
[ "$threads" -gt 1 ] || threads=2 # fastText says how far it is from a second one

fasttext_run() { # EPOCHS OPTIONS ...
    local epochs=$1
    shift
    { time fasttext supervised -input "$train" -output "$folder/model" -thread "$threads" -epoch "$epochs" "$@" \
        >"$folder/log" 2>&1; } 2>"$folder/time"
}

tp_run() { # OPTIONS ...
    { time "$here/tp" train --data "$train" --out "$folder/tp" "$@" >"$folder/log" 2>&1; } 2>"$folder/time" ||
        { tail "$folder/log" >&2; exit 1; }
}

took() { cut -d' ' -f1 "$folder/time"; }

# of each row the labels and their probabilities, best first, from the output of fastText or of tp predict --json
judge() { # NAME
    awk -v name="$1" -v clock="$(cat "$folder/time")" '
        NR == FNR { rows++; lines[rows] = $0; next }
        { count = 0; n = split(lines[FNR], words, " "); delete own
          for (i = 1; i <= n; i++)
              if (words[i] ~ /^__label__/ && !(words[i] in own)) { own[words[i]]; count++ }
          if (!count) next
          judged++; gain = ideal = 0
          for (i = 1; i <= 5 && i <= count; i++) ideal += 1 / log(i + 1)
          right += count
          for (i = 1; i < NF; i += 2) {
              hit = $i in own
              if (i == 1) first += hit
              if (i <= 9) { five += hit; gain += hit / log((i + 1) / 2 + 1) }
              if ($(i + 1) > 0.5) { said++; both += hit }
          }
          ndcg += gain / ideal }
        END { split(clock, t, " ")
            printf "%-24s %6.1f s %7.1f processor s   P@1 %.4f  P@5 %.4f  nDCG@5 %.4f  micro F1 %.4f\n", name, t[1],
                t[2] + t[3], first / judged, five / 5 / judged, ndcg / judged, 2 * both / (said + right) }' \
        "$test" "$folder/best"
}

fasttext_side() { # OPTIONS ...
    local short part progress epochs
    fasttext_run 0 "$@" # what is not training: the words, the saved model
    short=$(took)
    part=$(awk -v short="$short" -v all="$seconds" 'BEGIN { print short + (all < 25 ? 5 : all / 5) }')
    TIMEFORMAT=%R
    part=$( { time timeout "$part" fasttext supervised -input "$train" -output "$folder/part" -thread "$threads" \
        -epoch 10 "$@" >"$folder/log" 2>&1; } 2>&1 || :)
    TIMEFORMAT='%R %U %S'
    progress=$(tr '\r' '\n' <"$folder/log" | sed -n 's/^Progress: *\([0-9.]*\)%.*/\1/p' | tail -1)
    epochs=$(awk -v short="$short" -v part="$part" -v progress="$progress" -v all="$seconds" \
        'BEGIN { n = int((all - short) / (part - short) * progress / 10 + 0.5); print n < 1 ? 1 : n }')
    fasttext_run "$epochs" "$@"
    fasttext predict-prob "$folder/model.bin" "$test" $best >"$folder/best"
    judge "fastText, $epochs epochs"
}

tp_side() {
    local minutes
    tp_run --steps 1 # what is not training: Java, the file, the saved model
    minutes=$(awk -v short="$(took)" -v all="$seconds" 'BEGIN { left = all - short; print (left < 1 ? 1 : left) / 60 }')
    tp_run --minutes "$minutes" ${TP_OPTIONS:-}
    "$here/tp" predict "$folder/tp" --file "$test" --top $best --json "$folder/best.json" >/dev/null
    awk '/^ *"input": / { if (rows++) print row; row = "" }
        /^ *"label": / { sub(/^ *"label": "/, ""); sub(/",?$/, ""); row = row " __label__" $0 }
        /^ *"score": / { row = row " " $2 }
        END { print row }' "$folder/best.json" >"$folder/best"
    judge "tp"
}

for each in ${SIDES:-fasttext tp}; do # such as SIDES=tp taskset -c 0
    "${each}_side" "$@"
done
