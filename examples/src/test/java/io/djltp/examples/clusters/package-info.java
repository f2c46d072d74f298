/** What is in {@code examples/clusters}: each script is run, where its launcher is. */
package io.djltp.examples.clusters;
