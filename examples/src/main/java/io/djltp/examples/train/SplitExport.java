package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.examples.lemma.FastTextFiles;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;

/** The words of a training for another program: the same to learn from, the same held out. */
final class SplitExport {

    private SplitExport() {}

    static void run(List<Language> languages, Path folder, PrintStream out) throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(languages);
        HeldOutSplit split =
                HeldOutSplit.of(corpus, TrainCommand.HELD_OUT, TrainCommand.SPLIT_SEED);
        try {
            new FastTextFiles(split).write(folder);
        } catch (IOException e) {
            throw new BadInputException(
                    "--export-split "
                            + folder
                            + " cannot be written ("
                            + e.getClass().getSimpleName()
                            + ": "
                            + e.getMessage()
                            + "): choose a folder with write permission and room",
                    e);
        }
        out.printf(
                Locale.ROOT,
                "%,d pairs of word and lemma to train on and %,d held-out words, %,d lemmas, are in"
                        + " %s%n",
                split.trainingSize(),
                split.size(),
                corpus.classes(),
                folder);
    }
}
