package io.djltp.examples.lemma;

import io.djltp.internal.files.Permutation;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A split as <a href="https://fasttext.cc/docs/en/supervised-tutorial.html">fastText</a> reads it:
 * a line for each example, the labels first, each with {@code __label__} before it.
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
public final class FastTextFiles {

    /** The file to train on. */
    public static final String TRAIN = "train.txt";

    /** The file of the held-out forms. */
    public static final String TEST = "test.txt";

    private static final String PREFIX = "__label__";
    private static final long SEED = 1;

    private FastTextFiles() {}

    /**
     * Writes the files of the {@linkplain HeldOutSplit#of(LemmaCorpus) usual split}.
     *
     * @param corpus the dictionaries
     * @param folder where they go; made if it is not there
     * @return what was written, the beginning of a sentence
     * @throws IOException if they cannot be written
     */
    public static String write(LemmaCorpus corpus, Path folder) throws IOException {
        return write(HeldOutSplit.of(corpus), folder);
    }

    static String write(HeldOutSplit split, Path folder) throws IOException {
        Files.createDirectories(folder);
        LemmaCorpus corpus = split.corpus();
        int[] pairs = split.trainingPairs();
        Permutation order = new Permutation(pairs.length, Permutation.key(SEED, 0));
        write(
                folder.resolve(TRAIN),
                pairs.length,
                i -> {
                    int pair = pairs[order.get(i)];
                    return label(corpus, corpus.classOf(pair)) + corpus.form(pair);
                });
        write(
                folder.resolve(TEST),
                split.size(),
                i ->
                        Arrays.stream(split.goldClasses(i))
                                .mapToObj(each -> label(corpus, each))
                                .collect(Collectors.joining("", "", split.form(i))));
        return String.format(
                Locale.ROOT,
                "%,d pairs of word and lemma to train on and %,d held-out words, %,d lemmas",
                split.trainingSize(),
                split.size(),
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
        Permutation drawn = new Permutation(order.length, Permutation.key(SEED, 0));
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
}
