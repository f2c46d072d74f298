package io.djltp.examples.lm;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import java.util.Arrays;
import java.util.Random;

/** Lets a trained model write: one character after another, each drawn by its probability. */
final class LmWriter {

    private final CharacterText text;
    private final int context;
    private final double temperature;
    private final Random random;

    /**
     * Creates a writer.
     *
     * @param text what the model was trained on
     * @param options the length of its context, how boldly it writes, and the seed
     */
    LmWriter(CharacterText text, LmOptions options) {
        this.text = text;
        context = options.sizes.context;
        temperature = options.temperature;
        random = new Random(options.seed);
    }

    /** Writes so many characters, from the beginning of a sentence. */
    String write(Model model, int characters) throws TranslateException {
        long[] ids = new long[characters + 1];
        ids[0] = text.end();
        StringBuilder written = new StringBuilder();
        try (NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor =
                        model.newPredictor(new NoopTranslator(null))) {
            for (int i = 1; i < ids.length; i++) {
                long[] seen = Arrays.copyOfRange(ids, Math.max(0, i - context), i);
                try (NDManager step = manager.newSubManager()) {
                    NDArray input = step.create(seen, new Shape(1, seen.length));
                    NDArray logits = predictor.predict(new NDList(input)).singletonOrThrow();
                    ids[i] = choose(logits.get(0, -1).toFloatArray());
                }
                written.append(text.decode((int) ids[i]));
            }
        }
        return written.toString();
    }

    /** Draws one of the logits by exp(logit / temperature), or takes the largest. */
    private int choose(float... logits) {
        int best = 0;
        for (int i = 1; i < logits.length; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        if (temperature == 0) {
            return best;
        }
        double[] sums = new double[logits.length];
        double sum = 0;
        for (int i = 0; i < sums.length; i++) {
            sum += Math.exp((logits[i] - logits[best]) / temperature);
            sums[i] = sum;
        }
        double drawn = random.nextDouble() * sum;
        int i = 0;
        while (sums[i] <= drawn && i < sums.length - 1) {
            i++;
        }
        return i;
    }
}
