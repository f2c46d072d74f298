package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.examples.lemma.LemmaSearch;
import io.djltp.head.TopClasses;
import io.djltp.internal.torch.Autograd;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * The lemmas that a trained model gives to the held-out words, with an ordinary DJL predictor on
 * its body and a search in its head.
 */
final class HeldOutEvaluation {
    private static final int BEST = 5;
    private static final int SHOWN = 30;
    private static final long LINE_INTERVAL = TimeUnit.SECONDS.toNanos(5);

    private final HeldOutSplit split;
    private final long[][] best; // the five best classes of each word
    private int judged;
    private long nextLine = System.nanoTime();

    /**
     * Predicts the lemmas of the first held-out words, and tells on the error stream how far it is.
     *
     * <p>Each thread has batches of its own and operations of one thread: no operation waits for
     * the slowest thread, as those of a search by all threads do, thousands of times.
     *
     * @param model the trained model
     * @param split the held-out words
     * @param heldOut their batches, in order
     * @param count how many words
     */
    HeldOutEvaluation(Model model, HeldOutSplit split, LemmaDataset heldOut, int count) {
        this.split = split;
        best = new long[count][];
        int threads = Autograd.getThreads();
        try (NDManager manager = NDManager.newBaseManager()) {
            List<Batch> batches = new ArrayList<>();
            heldOut.getData(manager).forEach(batches::add);
            IntStream.range(0, batches.size())
                    .filter(i -> i * batches.get(0).getSize() < count)
                    .parallel()
                    .forEach(
                            i -> {
                                Autograd.setThreads(1);
                                predict(model, batches.get(i), i * batches.get(0).getSize());
                            });
        } finally {
            Autograd.setThreads(threads); // of this thread, which took part
        }
    }

    private void predict(Model model, Batch batch, int first) {
        int count = Math.min(best.length - first, batch.getSize());
        try (LemmaSearch search = new LemmaSearch(model);
                Predictor<NDList, NDList> predictor =
                        search.newPredictor(new NoopTranslator(null))) {
            int k = (int) Math.min(BEST, search.getLemmas().getClasses());
            try (NDArray features = predictor.predict(batch.getData()).singletonOrThrow();
                    TopClasses top = search.getLemmas().topK(features, k)) {
                long[] flat = top.classes().toLongArray();
                for (int i = 0; i < count; i++) {
                    best[first + i] = Arrays.copyOfRange(flat, i * k, (i + 1) * k);
                }
            }
            show(count, search.getLemmas().getClasses());
        } catch (TranslateException e) {
            throw new IllegalStateException("The held-out words could not be judged", e);
        }
    }

    private synchronized void show(int count, long classes) {
        judged += count;
        if (judged == best.length || System.nanoTime() >= nextLine) {
            System.err.printf(
                    Locale.ROOT,
                    "judged %,d of %,d held-out words, each among %,d lemmas%n",
                    judged,
                    best.length,
                    classes);
            nextLine = System.nanoTime() + LINE_INTERVAL;
        }
    }

    /**
     * Returns the share of words with a right lemma among the best.
     *
     * @param k how many of the best are looked at
     * @return the share
     */
    double accuracy(int k) {
        int right = 0;
        for (int i = 0; i < best.length; i++) {
            int rank = split.rank(i, best[i]);
            right += rank >= 0 && rank < k ? 1 : 0;
        }
        return best.length == 0 ? Double.NaN : (double) right / best.length;
    }

    /** Prints some words, evenly taken from all, with the lemma that the model gives them. */
    void printTable(PrintStream out) {
        out.printf(Locale.ROOT, "%n%-28s %-24s %s%n", "held-out word", "predicted", "right lemma");
        int step = Math.max(1, best.length / SHOWN);
        for (int i = 0; i < best.length; i += step) {
            boolean right = split.rank(i, best[i][0]) == 0;
            out.printf(
                    Locale.ROOT,
                    "%-28s %-24s %s%n",
                    split.form(i),
                    label(best[i][0]),
                    right ? "yes" : "no: " + label(split.goldClasses(i)[0]));
        }
    }

    private String label(long classId) {
        return split.corpus().lexicon().label((int) classId);
    }
}
