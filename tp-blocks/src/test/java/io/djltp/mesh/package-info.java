/** Contains the tests of ranks and their configuration. */
package io.djltp.mesh;
