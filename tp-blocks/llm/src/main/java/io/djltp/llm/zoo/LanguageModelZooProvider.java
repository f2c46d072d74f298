package io.djltp.llm.zoo;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.MRL;
import ai.djl.repository.Repository;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelLoader;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.repository.zoo.ZooProvider;
import ai.djl.util.Progress;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

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

    private static final String GROUP_ID = "io.djltp.llm";

    /** Creates a provider. */
    public LanguageModelZooProvider() {}

    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    private static final class Zoo extends ModelZoo {

        Zoo() {
            addModel(new Loader("folder"));
            addModel(new Loader(MiniLmFolder.NAME));
        }

        @Override
        public String getGroupId() {
            return GROUP_ID;
        }

        @Override
        public Set<String> getSupportedEngines() {
            return Set.of("PyTorch");
        }
    }

    /** Names the factory of the blocks, and loads a folder as DJL loads its own. */
    private record Loader(String artifactId) implements ModelLoader {

        @Override
        public String getGroupId() {
            return GROUP_ID;
        }

        @Override
        public String getArtifactId() {
            return artifactId;
        }

        @Override
        public Application getApplication() {
            return Application.NLP.ANY;
        }

        @Override
        public MRL getMrl() {
            Repository none = Repository.newInstance("Hugging Face folders", Path.of(GROUP_ID));
            return none.model(getApplication(), GROUP_ID, getArtifactId());
        }

        @Override
        public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
                throws IOException, ModelNotFoundException, MalformedModelException {
            Map<String, Object> arguments = new HashMap<>();
            if (criteria.getOptions() != null) {
                LanguageModelFactory.checkOptions(criteria.getOptions().keySet());
                arguments.putAll(criteria.getOptions());
            }
            if (criteria.getArguments() != null) {
                arguments.putAll(criteria.getArguments());
            }
            Object folder = arguments.get(LanguageModelFactory.FOLDER);
            if (folder == null && MiniLmFolder.NAME.equals(criteria.getArtifactId())) {
                folder = MiniLmFolder.get();
            }
            if (folder == null) { // DJL goes on to the next loader
                throw new ModelNotFoundException(
                        "Give the Hugging Face folder, optOption(\"model_id\", folder)");
            }
            Path path = Path.of(folder.toString());
            if (!Files.isDirectory(path)) {
                throw new FileNotFoundException("There is no folder " + path);
            }
            LanguageModelFactory factory = new LanguageModelFactory();
            arguments.put("blockFactory", factory);
            return criteria.toBuilder()
                    .optGroupId(null)
                    .optArtifactId(null)
                    .optApplication(Application.UNDEFINED)
                    .optModelPath(path)
                    .optArguments(arguments)
                    .optTranslatorFactory(
                            criteria.getTranslatorFactory() == null
                                    ? factory
                                    : criteria.getTranslatorFactory())
                    .optOption("hasParameter", "false")
                    .build()
                    .loadModel();
        }

        @Override
        public <I, O> boolean isDownloaded(Criteria<I, O> criteria) {
            return true;
        }

        @Override
        public <I, O> void downloadModel(Criteria<I, O> criteria, Progress progress) {}
    }
}
