package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;

import io.djltp.internal.files.FolderZoo;
import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/**
 * Tells DJL of the model of this jar: {@code optGroupId("io.djltp")}, {@code
 * optArtifactId("lemma-en")}, a small lemmatiser of English words.
 */
public final class TensorParallelZooProvider implements ZooProvider {

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    /** Slices can be read from files only: those of the jar are put into DJL's cache once. */
    private static final class Zoo extends FolderZoo {

        private static final String NAME = "lemma-en";

        Zoo() {
            super("io.djltp", Application.NLP.TEXT_CLASSIFICATION, NAME);
        }

        @Override
        protected Path find(Criteria<?, ?> criteria, Map<String, Object> arguments)
                throws IOException {
            arguments.put("translatorFactory", LemmaNetwork.TranslatorFactory.class.getName());
            String version = LemmaNetwork.getVersion();
            return SideFolder.cached(NAME + "-" + version, LemmaNetwork::writeFolder);
        }
    }
}
