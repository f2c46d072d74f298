package io.djltp.examples.lemma;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Cuts a corpus into pairs to train on and a few forms that are never trained on.
 *
 * <p>A held-out form is inflected (none of its lemmas is spelled like it), no pair of it is left in
 * training, in any language, and each of its lemmas is still met in training with another form. So
 * the right answer is always a known class, but never for a word that has been seen. Which forms
 * are held out depends on the spellings and the seed alone.
 */
public final class HeldOutSplit {

    private static final int SIZE = 4000;
    private static final long SEED = 20260101; // never changed: held-out words stay held out

    private final LemmaCorpus corpus;

    /** The held-out pairs, form by form. */
    private final int[] pairs;

    /** Where in {@code pairs} each form begins and, at the end, the number of pairs. */
    private final int[] starts;

    private HeldOutSplit(LemmaCorpus corpus, int[] pairs, int[] starts) {
        this.corpus = corpus;
        this.pairs = pairs;
        this.starts = starts;
    }

    /**
     * Cuts a corpus into 4,000 held-out forms, always the same ones, and the others.
     *
     * @param corpus the corpus
     * @return the split
     */
    public static HeldOutSplit of(LemmaCorpus corpus) {
        return of(corpus, SIZE, SEED);
    }

    /**
     * Cuts a corpus.
     *
     * @param corpus the corpus
     * @param size how many forms to hold out; fewer are if the corpus has not enough
     * @param seed the seed
     * @return the split
     */
    public static HeldOutSplit of(LemmaCorpus corpus, int size, long seed) {
        int[] left = new int[corpus.classes()];
        for (int i = 0; i < corpus.size(); i++) {
            left[corpus.classOf(i)]++;
        }
        // The forms with the smallest hashes come first. The equal forms of two languages have the
        // same hash, so the limit never parts them.
        for (long wanted = 8L * size; ; wanted *= 8) {
            boolean all = wanted >= corpus.size();
            long limit = all ? -1L : Long.divideUnsigned(-1L, corpus.size()) * wanted;
            HeldOutSplit split =
                    select(corpus, candidates(corpus, limit, seed), size, left.clone());
            if (all || split.size() == size) {
                return split;
            }
        }
    }

    /**
     * Returns the corpus that was cut.
     *
     * @return the corpus
     */
    public LemmaCorpus corpus() {
        return corpus;
    }

    /**
     * Returns the number of held-out forms.
     *
     * @return the number of forms
     */
    public int size() {
        return starts.length - 1;
    }

    /**
     * Returns a held-out form.
     *
     * @param item which one, from 0
     * @return the form
     */
    public String form(int item) {
        return corpus.form(pairs[starts[item]]);
    }

    /**
     * Returns the classes that are right for a held-out form. Most forms have one.
     *
     * @param item which form, from 0
     * @return its classes
     */
    public int[] goldClasses(int item) {
        return Arrays.stream(pairs, starts[item], starts[item + 1]).map(corpus::classOf).toArray();
    }

    /**
     * Returns the number of pairs to train on.
     *
     * @return the number of pairs
     */
    public int trainingSize() {
        return corpus.size() - pairs.length;
    }

    /**
     * Returns the pairs to train on, in the order of the corpus.
     *
     * @return a new array
     */
    public int[] trainingPairs() {
        BitSet heldOut = new BitSet(corpus.size());
        Arrays.stream(pairs).forEach(heldOut::set);
        return IntStream.range(0, corpus.size()).filter(pair -> !heldOut.get(pair)).toArray();
    }

    /** Returns the pairs whose form has a hash up to a limit; equal forms are neighbours. */
    private static int[] candidates(LemmaCorpus corpus, long limit, long seed) {
        List<Candidate> candidates = new ArrayList<>();
        for (int i = 0; i < corpus.size(); i++) {
            long hash = corpus.formHash(i, seed);
            if (Long.compareUnsigned(hash, limit) <= 0) {
                candidates.add(new Candidate(hash ^ Long.MIN_VALUE, i));
            }
        }
        candidates.sort(
                Comparator.comparingLong(Candidate::order)
                        .thenComparing(candidate -> corpus.form(candidate.pair))
                        .thenComparingInt(Candidate::pair));
        return candidates.stream().mapToInt(Candidate::pair).toArray();
    }

    /** A pair, and the hash of its form as a signed number. */
    private record Candidate(long order, int pair) {}

    /** Takes the first forms among the candidates that leave each of their lemmas a pair. */
    private static HeldOutSplit select(LemmaCorpus corpus, int[] candidates, int size, int[] left) {
        int[] pairs = new int[candidates.length];
        int[] starts = new int[size + 1];
        int count = 0;
        int end;
        for (int i = 0; i < candidates.length && count < size; i = end) {
            end = i + 1;
            while (end < candidates.length && corpus.sameForm(candidates[i], candidates[end])) {
                end++;
            }
            boolean eligible =
                    Arrays.stream(candidates, i, end)
                            .allMatch(p -> !corpus.isLemma(p) && left[corpus.classOf(p)] > 1);
            if (eligible) {
                for (int k = i; k < end; k++) {
                    left[corpus.classOf(candidates[k])]--;
                    pairs[starts[count] + k - i] = candidates[k];
                }
                starts[count + 1] = starts[count] + end - i;
                count++;
            }
        }
        return new HeldOutSplit(
                corpus, Arrays.copyOf(pairs, starts[count]), Arrays.copyOf(starts, count + 1));
    }
}
