package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.translate.TranslateException;

import io.djltp.examples.BadInputException;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Asks a trained lemmatiser: a DJL predictor for its body, a search for its head. */
@Command(
        name = "lemma",
        description =
                "Prints the five best lemmas of words, with their probabilities and the time that"
                        + " it took to find them.",
        mixinStandardHelpOptions = true)
public final class LemmaCommand implements Callable<Integer> {

    private static final int BEST = 5;

    @Parameters(arity = "1..*", paramLabel = "WORD", description = "The words.")
    private List<String> words;

    @Option(
            names = "--model",
            defaultValue = "out/lemma",
            description = "Folder of the trained model (${DEFAULT-VALUE}).")
    private Path folder;

    private final PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public LemmaCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, MalformedModelException, TranslateException {
        if (words.stream().anyMatch(String::isBlank)) {
            throw new BadInputException("A word is empty: leave it out");
        }
        try (SavedModel saved = SavedModel.load(folder);
                LemmaSearch search = new LemmaSearch(saved.getModel());
                Predictor<String, Classifications> predictor =
                        search.newPredictor(saved.getNGrams(), saved.getLexicon(), BEST)) {
            predictor.predict(words.get(0)); // takes memory and loads code
            for (String word : words) {
                long begin = System.nanoTime();
                Classifications lemmas = predictor.predict(word);
                double milliseconds = (System.nanoTime() - begin) / 1e6;
                out.printf(Locale.ROOT, "%s (%.1f ms)%n", word, milliseconds);
                for (Classifications.Classification lemma : lemmas.topK(BEST)) {
                    out.printf(
                            Locale.ROOT,
                            "  %6.2f %%  %s%n",
                            100 * lemma.getProbability(),
                            lemma.getClassName());
                }
            }
        }
        return 0;
    }
}
