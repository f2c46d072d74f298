package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.AbstractRepository;
import ai.djl.repository.Artifact;
import ai.djl.repository.MRL;
import ai.djl.repository.Metadata;
import ai.djl.repository.zoo.BaseModelLoader;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.repository.zoo.ZooProvider;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Progress;

import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32;

/**
 * Tells DJL of the models of this library, {@code optGroupId("io.djltp")}.
 *
 * <ul>
 *   <li>{@code lemma-en}: a small lemmatiser of English words; in this jar
 *   <li>{@code all-MiniLM-L6-v2}: sentence embeddings; its 90 MB of weights are an artifact of
 *       their own
 * </ul>
 */
public final class TensorParallelZooProvider implements ZooProvider {

    private static final String GROUP_ID = "io.djltp";

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    private static final class Zoo extends ModelZoo {

        Zoo() {
            addModel(new Loader(new LemmaFiles()));
            addModel(new Loader(new MiniLmFiles()));
        }

        /** {@inheritDoc} */
        @Override
        public String getGroupId() {
            return GROUP_ID;
        }

        /** {@inheritDoc} */
        @Override
        public Set<String> getSupportedEngines() {
            return Set.of("PyTorch");
        }
    }

    /** DJL hands no options to block factories: the degree becomes an argument. */
    private static final class Loader extends BaseModelLoader {

        Loader(ZooFiles files) {
            super(files.resource);
        }

        /** {@inheritDoc} */
        @Override
        public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
                throws IOException, ModelNotFoundException, MalformedModelException {
            Map<String, Object> arguments = new HashMap<>();
            if (criteria.getOptions() != null
                    && criteria.getOptions().containsKey(TensorParallelDegree.NAME)) {
                arguments.put(
                        TensorParallelDegree.NAME,
                        criteria.getOptions().get(TensorParallelDegree.NAME));
            }
            if (criteria.getArguments() != null) {
                arguments.putAll(criteria.getArguments());
            }
            return super.loadModel(criteria.toBuilder().optArguments(arguments).build());
        }
    }

    /**
     * The files of a model, from the class path. Slices can be read from files only, so that they
     * are put into DJL's cache once: to the side, then renamed, in a folder of their version.
     */
    private abstract static class ZooFiles extends AbstractRepository {

        private final MRL resource;
        private final Metadata metadata = new Metadata.MatchAllMetadata();

        @SuppressWarnings("this-escape") // nobody asks before it is complete
        ZooFiles(
                Application application,
                String artifactId,
                Class<? extends TranslatorFactory> translators) {
            super("DJL Tensor Parallel", URI.create("djltp:///" + artifactId));
            resource = model(application, GROUP_ID, artifactId);
            Artifact artifact = new Artifact();
            artifact.setName(artifactId);
            artifact.getArguments().put("translatorFactory", translators.getName());
            artifact.setFiles(Map.of());
            metadata.setGroupId(GROUP_ID);
            metadata.setArtifactId(artifactId);
            metadata.setApplication(application);
            metadata.setArtifacts(List.of(artifact));
            metadata.setRepositoryUri(resource.toURI());
        }

        /** Returns which files these are: others have another version. */
        abstract String getVersion() throws IOException;

        /** Writes a {@link ModelFolder}. */
        abstract void write(Path folder) throws IOException;

        /** {@inheritDoc} */
        @Override
        public boolean isRemote() {
            return true; // its files are not where they are read
        }

        /** {@inheritDoc} */
        @Override
        public Metadata locate(MRL mrl) {
            return metadata;
        }

        /** {@inheritDoc} */
        @Override
        public Artifact resolve(MRL mrl, Map<String, String> filter) {
            return metadata.getArtifacts().get(0);
        }

        /** {@inheritDoc} */
        @Override
        public List<MRL> getResources() {
            return List.of(resource);
        }

        /** {@inheritDoc} */
        @Override
        public Path getResourceDirectory(Artifact artifact) throws IOException {
            return getCacheDirectory().resolve(resource.toURI().getPath()).resolve(getVersion());
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(Artifact artifact, Progress progress) throws IOException {
            Path folder = getResourceDirectory(artifact);
            if (Files.isDirectory(folder)) {
                return;
            }
            Files.createDirectories(folder.getParent());
            try (SideFolder side = SideFolder.in(folder.getParent())) {
                write(Files.createDirectory(side.resolve(folder.getFileName().toString())));
                side.replace();
            } catch (IOException e) {
                if (!Files.isDirectory(folder)) { // else another process was faster
                    throw e;
                }
            }
        }
    }

    private static final class LemmaFiles extends ZooFiles {

        private static final List<String> NAMES =
                List.of(ModelFolder.WEIGHTS, ModelFolder.PROPERTIES, LemmaNetwork.LABELS);

        LemmaFiles() {
            super(
                    Application.NLP.TEXT_CLASSIFICATION,
                    "lemma-en",
                    LemmaNetwork.TranslatorFactory.class);
        }

        /** {@inheritDoc} */
        @Override
        String getVersion() throws IOException {
            CRC32 sum = new CRC32();
            for (String name : NAMES) {
                try (InputStream file = open(name)) {
                    sum.update(file.readAllBytes());
                }
            }
            return Long.toHexString(sum.getValue());
        }

        /** {@inheritDoc} */
        @Override
        void write(Path folder) throws IOException {
            for (String name : NAMES) {
                try (InputStream file = open(name)) {
                    Files.copy(file, folder.resolve(name));
                }
            }
        }

        private static InputStream open(String name) {
            return LemmaNetwork.class.getResourceAsStream("lemma-en/" + name);
        }
    }

    private static final class MiniLmFiles extends ZooFiles {

        MiniLmFiles() {
            super(
                    Application.NLP.TEXT_EMBEDDING,
                    "all-MiniLM-L6-v2",
                    MiniLm.TranslatorFactory.class);
        }

        /** {@inheritDoc} */
        @Override
        String getVersion() throws IOException {
            return MiniLm.getVersion();
        }

        /** {@inheritDoc} */
        @Override
        void write(Path folder) throws IOException {
            MiniLm.writeFolder(folder);
        }
    }
}
