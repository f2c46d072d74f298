/** What the documentation shows is compiled and run as it stands there. */
package io.djltp.examples.docs;
