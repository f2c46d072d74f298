package io.djltp.examples.lemma;

import io.djltp.internal.files.Permutation;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Cuts a corpus into pairs to train on and a few forms that are never trained on.
 *
 * <p>A held-out form is inflected (none of its lemmas is spelled like it), no pair of it is left in
 * training, in any language, and each of its lemmas is still met in training with another form. So
 * the right answer is always a known class, but never for a word that has been seen. Which forms
 * are held out depends on the spellings and the seed alone.
 *
 * <p>Both are written as <a
 * href="https://fasttext.cc/docs/en/supervised-tutorial.html">fastText</a> reads them: a line for
 * each example, the labels first, each with {@code __label__} before it.
 *
 * <ul>
 *   <li>{@value #TRAIN}: a pair a line, in an order drawn once, as fastText goes through the file
 *       from where each thread begins, and a dictionary in its own order would teach it a letter at
 *       a time
 *   <li>{@value #TEST}: a held-out form a line, with all of its right classes
 * </ul>
 *
 * <p>A label is a lemma, with {@code _} for a space, at which fastText ends a label; of several
 * languages with the code of its own.
 */
public final class HeldOutSplit {

    /** The file to train on. */
    public static final String TRAIN = "train.txt";

    /** The file of the held-out forms. */
    public static final String TEST = "test.txt";

    private static final String PREFIX = "__label__";
    private static final int SIZE = 4000;
    private static final long SEED = 20260101; // never changed: held-out words stay held out
    private static final long ORDER = 1; // the seed of the order of lines

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

    /**
     * Writes the files of the
     *
     * @param folder where they go; made if it is not there
     * @return what was written, the beginning of a sentence
     * @throws IOException if they cannot be written
     */
    public String write(Path folder) throws IOException {
        Files.createDirectories(folder);
        int[] training = trainingPairs();
        Permutation order = new Permutation(training.length, Permutation.key(ORDER, 0));
        write(
                folder.resolve(TRAIN),
                training.length,
                i -> {
                    int pair = training[order.get(i)];
                    return label(corpus, corpus.classOf(pair)) + corpus.form(pair);
                });
        write(
                folder.resolve(TEST),
                size(),
                i ->
                        Arrays.stream(goldClasses(i))
                                .mapToObj(each -> label(corpus, each))
                                .collect(Collectors.joining("", "", form(i))));
        return String.format(
                Locale.ROOT,
                "%,d pairs of word and lemma to train on and %,d held-out words, %,d lemmas",
                training.length,
                size(),
                corpus.classes());
    }

    /**
     * Writes the dictionary turned round: a lemma a line, with the endings of all its forms as
     * labels. A tenth of the lemmas, drawn once, is in the file to test on.
     *
     * <p>The forms themselves are no labels to hold out: nearly all of them belong to one lemma.
     *
     * @param corpus the dictionary
     * @param folder where the files go; made if it is not there
     * @return what was written, the beginning of a sentence
     * @throws IOException if they cannot be written
     */
    public static String writeForms(LemmaCorpus corpus, Path folder) throws IOException {
        Files.createDirectories(folder);
        List<Set<String>> endings = new ArrayList<>();
        for (int i = 0; i < corpus.classes(); i++) {
            endings.add(new LinkedHashSet<>());
        }
        for (int pair = 0; pair < corpus.size(); pair++) {
            int lemma = corpus.classOf(pair);
            endings.get(lemma).add(ending(corpus.lemma(lemma), corpus.form(pair)));
        }
        int[] order = new int[endings.size()];
        Permutation drawn = new Permutation(order.length, Permutation.key(ORDER, 0));
        Arrays.setAll(order, drawn::get);
        int tests = order.length / 10;
        IntFunction<String> line =
                i ->
                        endings.get(order[i]).stream()
                                .map(PREFIX::concat)
                                .collect(Collectors.joining(" "))
                                .concat(" " + corpus.lemma(order[i]));
        write(folder.resolve(TEST), tests, line);
        write(folder.resolve(TRAIN), order.length - tests, i -> line.apply(tests + i));
        return String.format(
                Locale.ROOT,
                "%,d lemmas to train on and %,d held-out ones, with %,d endings",
                order.length - tests,
                tests,
                endings.stream().flatMap(Set::stream).distinct().count());
    }

    /** Returns what a form has in place of the end of its lemma: -en+t of gehen and geht. */
    static String ending(String lemma, String form) {
        int same = 0;
        int most = Math.min(lemma.length(), form.length());
        while (same < most && lemma.charAt(same) == form.charAt(same)) {
            same++;
        }
        return ("-" + lemma.substring(same) + "+" + form.substring(same)).replace(' ', '_');
    }

    private static String label(LemmaCorpus corpus, int lemma) {
        return PREFIX + corpus.label(lemma).replace(' ', '_') + " ";
    }

    private static void write(Path file, int count, IntFunction<String> line) throws IOException {
        Files.write(file, (Iterable<String>) IntStream.range(0, count).mapToObj(line)::iterator);
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
