package io.djltp.llm.zoo;

import ai.djl.Application;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;

import io.djltp.internal.files.FolderZoo;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Lets DJL load Hugging Face folders, {@code optGroupId("io.djltp.llm")}.
 *
 * <pre>{@code
 * Criteria<String, String> criteria = Criteria.builder()
 *         .setTypes(String.class, String.class)
 *         .optGroupId("io.djltp.llm")
 *         .optOption("model_id", folder.toString())
 *         .optOption("tensor_parallel_degree", "2")
 *         .build();
 * }</pre>
 *
 * <p>{@link LanguageModelFactory} lists the options and the types. {@code
 * optArtifactId("all-MiniLM-L6-v2")} needs no {@code model_id}: it loads the {@link MiniLmFolder}.
 */
public final class LanguageModelZooProvider implements ZooProvider {

    /** Creates a provider. */
    public LanguageModelZooProvider() {}

    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    private static final class Zoo extends FolderZoo {

        Zoo() {
            super("io.djltp.llm", Application.NLP.ANY, "folder", MiniLmFolder.NAME);
        }

        @Override
        protected Path find(Criteria<?, ?> criteria, Map<String, Object> arguments)
                throws IOException, ModelNotFoundException {
            if (criteria.getOptions() != null) {
                LanguageModelFactory.checkOptions(criteria.getOptions().keySet());
            }
            arguments.put("blockFactory", new LanguageModelFactory());
            arguments.putIfAbsent("translatorFactory", LanguageModelFactory.class.getName());
            Object folder = arguments.get(LanguageModelFactory.FOLDER);
            if (folder == null && MiniLmFolder.NAME.equals(criteria.getArtifactId())) {
                return MiniLmFolder.get();
            }
            if (folder == null) { // DJL goes on to the next loader
                throw new ModelNotFoundException(
                        "Give the Hugging Face folder, optOption(\"model_id\", folder)");
            }
            Path path = Path.of(folder.toString());
            if (!Files.isDirectory(path)) {
                throw new FileNotFoundException("There is no folder " + path);
            }
            return path;
        }
    }
}
