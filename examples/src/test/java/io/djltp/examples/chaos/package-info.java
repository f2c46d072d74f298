/** Jobs whose processes are killed and frozen, and networks that break. */
package io.djltp.examples.chaos;
