package io.djltp.examples.classes;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;

/** The former name of {@link PredictCommand}, for the lemmatiser alone. */
@Command(name = "lemma", hidden = true, mixinStandardHelpOptions = true)
public final class LemmaCommand implements Callable<Integer> {

    @Parameters(arity = "1..*", paramLabel = "WORD", description = "The words.")
    private List<String> words;

    @Option(names = "--model", defaultValue = "out/lemma", description = "Folder of the model.")
    private Path folder;

    /** Creates the command; its options are set by the command line. */
    public LemmaCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        return new PredictCommand(folder, words).call();
    }
}
