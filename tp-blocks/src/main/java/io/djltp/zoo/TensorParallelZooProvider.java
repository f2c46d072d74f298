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
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

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
            addModel(
                    new ZooFiles(
                            Application.NLP.TEXT_CLASSIFICATION,
                            "lemma-en",
                            LemmaNetwork.TranslatorFactory.class,
                            LemmaNetwork::getVersion,
                            LemmaNetwork::writeFolder));
            addModel(
                    new ZooFiles(
                            Application.NLP.TEXT_EMBEDDING,
                            "all-MiniLM-L6-v2",
                            MiniLm.TranslatorFactory.class,
                            MiniLm::getVersion,
                            MiniLm::writeFolder));
        }

        private void addModel(ZooFiles files) {
            addModel(new Loader(files));
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
    private static final class ZooFiles extends AbstractRepository {

        private final Version version;
        private final Writer writer;
        private final MRL resource;
        private final Metadata metadata = new Metadata.MatchAllMetadata();

        /** Says which files these are: others have another version. */
        private interface Version {

            String get() throws IOException;
        }

        /** Writes a {@link ModelFolder}. */
        private interface Writer {

            void write(Path folder) throws IOException;
        }

        ZooFiles(
                Application application,
                String artifactId,
                Class<? extends TranslatorFactory> translators,
                Version version,
                Writer writer) {
            super("DJL Tensor Parallel", URI.create("djltp:///" + artifactId));
            this.version = version;
            this.writer = writer;
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
            return getCacheDirectory().resolve(resource.toURI().getPath()).resolve(version.get());
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(Artifact artifact, Progress progress) throws IOException {
            Path folder = getResourceDirectory(artifact);
            if (Files.isDirectory(folder)) {
                return;
            }
            Path parent = Files.createDirectories(folder.getParent());
            try (SideFolder side = SideFolder.in(parent)) {
                writer.write(Files.createDirectory(side.resolve(folder.getFileName().toString())));
                side.replace();
            } catch (IOException e) {
                if (!Files.isDirectory(folder)) { // else another process was faster
                    throw e;
                }
            }
        }
    }
}
