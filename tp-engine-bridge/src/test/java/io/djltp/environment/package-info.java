/** Contains the tests of what launchers say about a process, and where the secret lies. */
package io.djltp.environment;
